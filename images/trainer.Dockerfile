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

FROM fabric
COPY constraints.txt pyproject.toml /var/tmp/bivouac/
COPY infra /var/tmp/bivouac/infra
COPY trainer /var/tmp/bivouac/trainer
# torch brings NCCL and CUDA's runtime; every version is that of constraints.txt.
RUN pip install --no-cache-dir --constraint /var/tmp/bivouac/constraints.txt setuptools wheel \
    && pip install --no-cache-dir --no-build-isolation --constraint /var/tmp/bivouac/constraints.txt /var/tmp/bivouac \
    && rm -rf /var/tmp/bivouac
ARG CODE_DIGEST
ENV BIVOUAC_CODE_DIGEST=${CODE_DIGEST} \
    LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu
RUN python -c "import deepspeed, torch, trainer.agent"
