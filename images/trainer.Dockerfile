# The trainer's image whole, for registries and nodes that do not share base layers: the content of the trainer role of
# playbooks/bake.yml on a system of its own. No version stands here: `python images/build_args.py` reads versions.yaml.
#
#   docker build -f images/trainer.Dockerfile $(python images/build_args.py --base-digest sha256:...) .
#
# The digest of the base cannot be known offline. It is what
#   docker buildx imagetools inspect BASE --format '{{.Manifest.Digest}}'
# prints for trainer_container.base of versions.yaml; write it into versions.yaml once you have reviewed that base.
ARG BASE
FROM ${BASE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
       ca-certificates curl gcc g++ libc6-dev make pciutils python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/bivouac/venv
ENV PATH=/opt/bivouac/venv/bin:${PATH}

FROM python AS fabric
# User space of EFA with the OFI plugin of NCCL; the kernel's module is the node's.
ARG EFA_URL
ARG EFA_SHA256
WORKDIR /var/tmp/efa
RUN curl --fail --silent --show-error --location --retry 3 --max-time 900 --output installer.tar.gz "${EFA_URL}" \
    && echo "${EFA_SHA256}  installer.tar.gz" | sha256sum --check --strict \
    && tar --extract --file installer.tar.gz --strip-components 1 \
    && apt-get update \
    && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
    && rm -rf /var/tmp/efa /var/lib/apt/lists/*
# Where the plugin lies and how it is named has changed with the installer's versions: both places are on the library
# path, a plugin under its own name only gets the one that NCCL asks for, and without any there is no image.
RUN set -e; found=""; \
    for folder in /opt/amazon/ofi-nccl/lib /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu; do \
      for plugin in "$folder"/libnccl-net*.so; do \
        if [ -e "$plugin" ]; then \
          found="$plugin"; [ -e "$folder/libnccl-net.so" ] || ln -s "${plugin##*/}" "$folder/libnccl-net.so"; \
        fi; \
      done; \
    done; \
    if [ -z "$found" ]; then echo "EFA's installer brought no plugin of NCCL; cure: look where it is now" >&2; exit 1; fi
# GDRCopy's library; its kernel module is the node's.
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
# DCGM, for preflight.dcgm_level: the engine that the health check starts, and the tests that it runs.
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

FROM diagnosis
COPY constraints.txt pyproject.toml /var/tmp/bivouac/
COPY infra /var/tmp/bivouac/infra
COPY trainer /var/tmp/bivouac/trainer
# torch brings NCCL and CUDA's runtime; every version is that of constraints.txt.
RUN pip install --no-cache-dir --constraint /var/tmp/bivouac/constraints.txt setuptools wheel \
    && pip install --no-cache-dir --no-build-isolation --constraint /var/tmp/bivouac/constraints.txt /var/tmp/bivouac \
    && rm -rf /var/tmp/bivouac
ARG CODE_DIGEST
ARG OFI_NCCL
# BIVOUAC_OFI_NCCL: what the health check holds the loaded plugin against.
ENV BIVOUAC_CODE_DIGEST=${CODE_DIGEST} \
    BIVOUAC_OFI_NCCL=${OFI_NCCL} \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu
RUN python -c "import deepspeed, torch, trainer.agent"
