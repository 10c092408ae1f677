# Three images. Target `base` holds system, fabric and Python packages of training; target `slim` holds those of the
# steward, without torch and CUDA; neither holds the project. A person, or .github/workflows/images.yml, builds each once
# and pushes it to the account's registry (`image.base` and `image.steward_base` of a spec); each bake adds one layer:
#
#   docker build -f images/trainer.Dockerfile --target base --platform linux/amd64 -t REGISTRY/bivouac/base:cuda \
#     $(python images/build_args.py --target base --base-digest sha256:...) .
#   docker build -f images/trainer.Dockerfile --target slim --platform linux/amd64 -t REGISTRY/bivouac/base:slim \
#     $(python images/build_args.py --target slim --base-digest sha256:...) .
#   docker push REGISTRY/bivouac/base:cuda; docker push REGISTRY/bivouac/base:slim
#
# Without --target it builds the whole trainer image, for registries that no bake pushes to. All versions are in
# versions.yaml, which `python images/build_args.py` reads.
#
# The digests of trainer_container.base and slim_container.base in versions.yaml cannot be known offline. This prints one:
#   docker buildx imagetools inspect BASE --format '{{.Manifest.Digest}}'
# Write it into versions.yaml once you have reviewed that base.
ARG BASE
FROM ${BASE} AS slim
COPY requirements/steward.txt /var/tmp/bivouac/
RUN pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: --requirement /var/tmp/bivouac/steward.txt \
    && pip check && rm -rf /var/tmp/bivouac
# The bake chooses packages for the Python that the image tells.
ARG PYTHON_VERSION
ENV PYTHON_VERSION=${PYTHON_VERSION}
RUN python -c "import sys; assert sys.version.startswith('${PYTHON_VERSION}.'), sys.version"
ARG MOST_MB
RUN used=$(du --block-size=MB --summarize --one-file-system / | cut --fields=1 | tr --delete MB); \
    if [ "$used" -gt "${MOST_MB}" ]; then \
      echo "the image is too large: $used MB unpacked, at most ${MOST_MB}; cure: see requirements/steward.txt" >&2; exit 1; \
    fi

FROM ${BASE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
       ca-certificates curl gcc g++ libc6-dev make pciutils python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/bivouac/venv
ENV PATH=/opt/bivouac/venv/bin:${PATH}

FROM python AS fabric
# EFA's user space with NCCL's OFI plugin; the node has the kernel module.
ARG EFA_URL
ARG EFA_SHA256
WORKDIR /var/tmp/efa
RUN curl --fail --silent --show-error --location --retry 3 --max-time 900 --output installer.tar.gz "${EFA_URL}" \
    && echo "${EFA_SHA256}  installer.tar.gz" | sha256sum --check --strict \
    && tar --extract --file installer.tar.gz --strip-components 1 \
    && apt-get update \
    && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
    && rm -rf /var/tmp/efa /var/lib/apt/lists/*
# The plugin's folder and name vary with the installer's version. Both folders are on the library path, a plugin with
# another name gets a link with the name that NCCL looks for, and the build fails without a plugin.
RUN set -e; found=""; \
    for folder in /opt/amazon/ofi-nccl/lib /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu; do \
      for plugin in "$folder"/libnccl-net*.so; do \
        if [ -e "$plugin" ]; then \
          found="$plugin"; [ -e "$folder/libnccl-net.so" ] || ln -s "${plugin##*/}" "$folder/libnccl-net.so"; \
        fi; \
      done; \
    done; \
    if [ -z "$found" ]; then echo "EFA's installer brought no plugin of NCCL; cure: look where it is now" >&2; exit 1; fi
# GDRCopy's library; the node has its kernel module.
ARG GDRCOPY_URL
ARG GDRCOPY_SHA256
WORKDIR /var/tmp/gdrcopy
RUN curl --fail --silent --show-error --location --retry 3 --max-time 300 --output gdrcopy.tar.gz "${GDRCOPY_URL}" \
    && echo "${GDRCOPY_SHA256}  gdrcopy.tar.gz" | sha256sum --check --strict \
    && tar --extract --file gdrcopy.tar.gz --strip-components 1 \
    && make lib lib_install prefix=/usr \
    && rm -rf /var/tmp/gdrcopy
WORKDIR /

FROM fabric AS diagnosis
# DCGM for preflight.dcgm_level: the health check's engine and tests.
ARG DCGM_KEYRING_URL
ARG DCGM_KEYRING_SHA256
ARG DCGM_PACKAGES
RUN curl --fail --silent --show-error --location --retry 3 --max-time 300 --output /var/tmp/keyring.deb \
       "${DCGM_KEYRING_URL}" \
    && echo "${DCGM_KEYRING_SHA256}  /var/tmp/keyring.deb" | sha256sum --check --strict \
    && dpkg --install /var/tmp/keyring.deb \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
       $(echo "${DCGM_PACKAGES}" | tr "," " ") \
    && nv-hostengine --version && dcgmi --version \
    && rm -rf /var/tmp/keyring.deb /var/lib/apt/lists/*

FROM diagnosis AS base
COPY requirements/build.txt requirements/image.txt /var/tmp/bivouac/
WORKDIR /var/tmp/bivouac
# torch brings NCCL and CUDA's runtime; every file has a pinned hash. The project is not installed here.
RUN pip install --no-cache-dir --require-hashes --requirement build.txt \
    && pip install --no-cache-dir --require-hashes --no-build-isolation --no-deps --requirement image.txt \
    && pip check
WORKDIR /
RUN rm -rf /var/tmp/bivouac
ARG PYTHON_VERSION
ENV PYTHON_VERSION=${PYTHON_VERSION}
RUN python -c "import sys; assert sys.version.startswith('${PYTHON_VERSION}.'), sys.version"
ARG OFI_NCCL
# BIVOUAC_OFI_NCCL: the version with which the health check compares the loaded plugin.
ENV BIVOUAC_OFI_NCCL=${OFI_NCCL} \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu
RUN python -c "import deepspeed, torch"

FROM base
COPY pyproject.toml /var/tmp/bivouac/
COPY infra /var/tmp/bivouac/infra
COPY trainer /var/tmp/bivouac/trainer
RUN pip install --no-cache-dir --no-build-isolation --no-deps /var/tmp/bivouac && rm -rf /var/tmp/bivouac
ARG CODE_DIGEST
ENV BIVOUAC_CODE_DIGEST=${CODE_DIGEST}
RUN python -c "import deepspeed, torch, trainer.builtin.agent"
