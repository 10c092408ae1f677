"""Rules about the settings of NCCL, of its plugin for EFA and of libfabric, in a job's `nccl` and `env`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, warning

_AGAINST_EFA = {
    "FI_EFA_ENABLE_SHM_TRANSFER": "is not needed: the plugin has libfabric turn it off",
    "FI_EFA_FORK_SAFE": "is not needed any more",
    "FI_EFA_USE_DEVICE_RDMA": "is not needed since plugin 1.7 and libfabric 1.18",
    "FI_PROVIDER": "is for plugins up to 1.5.0: later ones choose the provider",
    "NCCL_ALGO": "is for debugging: the plugin's tuner chooses",
    "NCCL_IB_DISABLE": "is for InfiniBand, and hides a slow fall back to sockets",
    "NCCL_NET": "names another network than EFA's plugin does",
    "NCCL_NET_PLUGIN": "takes another plugin than the one in the image",
    "NCCL_NSOCKS_PERTHREAD": "is for sockets, and hides a slow fall back to them",
    "NCCL_PROTO": "is for plugins up to 1.5.0: a forced protocol may corrupt data",
    "NCCL_SOCKET_NTHREADS": "is for sockets, and hides a slow fall back to them",
    "RDMAV_FORK_SAFE": "is not needed any more",
}
"""Variables that harm, or mean nothing, where NCCL goes over EFA: aws-ofi-nccl, doc/efa-env-var.md, and NVIDIA's list
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"""
_BETTER_LEFT = {
    "NCCL_BUFFSIZE": "the plugin's page advises the default",
    "NCCL_MIN_NCHANNELS": "more channels make smaller messages, which starve EFA: the page advises the default",
}
_NCCL = """
ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE CHECK_MODE CHECK_POINTERS COLLNET_ENABLE
COLLNET_NODE_THRESHOLD COMM_BLOCKING CONF_FILE CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE
DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DMABUF_ENABLE ENV_PLUGIN GRAPH_MIXING_SUPPORT
GRAPH_REGISTER GRAPH_STREAM_ORDERING IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE IB_AR_THRESHOLD IB_CUDA_SUPPORT
IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_OOO_RQ IB_PCI_RELAXED_ORDERING
IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC
IB_TIMEOUT IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_NET_MISMATCH IPC_USE_ABSTRACT_SOCKET LAUNCH_MODE
LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL_THRESHOLD LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS
MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE NET
NETDEVS_POLICY NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_MERGE_POLICY NET_PLUGIN NET_SHARED_BUFFERS
NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLS_ENABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE
P2P_DISABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE P2P_PXN_LEVEL PROFILER_PLUGIN PROTO PXN_C2C PXN_DISABLE
RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RUNTIME_CONNECT SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE
SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_MAGIC SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC
SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_GIN_KERNELS_ENABLE TOPO_DUMP_FILE TOPO_FILE TREE_THRESHOLD TUNER_PLUGIN
UID_STAGGER_RATE UID_STAGGER_THRESHOLD WIN_ENABLE
"""
"""After `NCCL_`: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, compared with its source,
docs/userguide/source/env.rst of github.com/NVIDIA/nccl at 5067397, June 2026."""
_NCCL_READS = """
COMM_ID HOSTID IGNORE_DISABLED_P2P MNNVL_SCATTER_NETS_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_NCHANNELS
SYM_CTAS WARN_ENABLE_DEBUG_INFO
"""
"""After `NCCL_`: what NCCL reads and that list leaves out, in src/ at the same commit."""
_PLUGIN = """
ABORT_ON_ERROR CM_NUM_RX_BUFFERS CQ_READ_COUNT CQ_SIZE CUDA_FLUSH_ENABLE DISABLE_CLOSE_MESSAGE DISABLE_DMABUF
DISABLE_GDR_REQUIRED_CHECK DISABLE_NATIVE_RDMA_CHECK EAGER_MAX_SIZE EARLY_COMPLETION ERRORCHECK_MUTEX EXCLUDE_TCP_IF
FORCE_NUM_RAILS GDAKI_EFA_HW_COUNTER GDR_FLUSH_DISABLE GIN_CQ_PROCESS_MAX_ITER MIN_STRIPE_SIZE MR_CACHE_DISABLE
MR_KEY_SIZE NET_LATENCY NIC_DUP_CONNS NVTX_TRACE_DIMENSION PLATFORM PROGRESS_MODEL PROTOCOL
RDMA_MAX_POSTED_CONTROL_BUFFERS RDMA_MAX_POSTED_EAGER_BUFFERS RDMA_MIN_POSTED_CONTROL_BUFFERS
RDMA_MIN_POSTED_EAGER_BUFFERS RR_CTRL_MSG SCHED_MAX_SMALL_RR_SIZE SKIP_NICS_WITHOUT_ACCEL_AT_SAME_PCI_LEVEL
TUNER_NET_COMP_OVERHEAD TUNER_NET_LATENCY TUNER_NUM_CHANNELS TUNER_TYPE USE_IPV6_TCP USE_LOW_LATENCY_TC
"""
"""After `OFI_NCCL_`: include/nccl_ofi_param.h of github.com/aws/aws-ofi-nccl at 2daf7d3, August 2026."""
_EFA = """
CQ_SIZE ENABLE_SHM_TRANSFER FORK_SAFE IFACE INTERNAL_RX_REFILL_THRESHOLD INTER_MAX_MEDIUM_MESSAGE_SIZE
INTER_MIN_READ_MESSAGE_SIZE INTER_MIN_READ_WRITE_SIZE MAX_MEMCPY_SIZE MAX_TIMEOUT MR_CACHE_ENABLE MR_MAX_CACHED_COUNT
MR_MAX_CACHED_SIZE MTU_SIZE RECVWIN_SIZE RUNT_SIZE RX_COPY_OOO RX_COPY_UNEXP RX_IOV_LIMIT RX_SIZE RX_WINDOW_SIZE
SET_CUDA_SYNC_MEMOPS SHM_AV_SIZE SHM_MAX_MEDIUM_SIZE TIMEOUT_INTERVAL TRACK_MR TX_IOV_LIMIT TX_QUEUE_SIZE TX_SIZE
USE_DATA_PATH_DIRECT USE_DEVICE_RDMA USE_HUGE_PAGE USE_UNSOLICITED_WRITE_RECV USE_ZCPY_RX
"""
"""After `FI_EFA_`: https://ofiwg.github.io/libfabric/main/man/fi_efa.7.html, compared with man/fi_efa.7.md of
github.com/ofiwg/libfabric at af8ddbe, August 2026, and with earlier ones; aws-ofi-nccl, doc/efa-env-var.md."""
_FABRIC = """
FORK_UNSAFE HMEM HMEM_CUDA_ENABLE_ASYNC_COPY HMEM_CUDA_USE_DMABUF HMEM_CUDA_USE_GDRCOPY HMEM_DISABLE_P2P LOG_INTERVAL
LOG_LEVEL LOG_LOCATION LOG_LOCATION_MODE LOG_PROV LOG_SUBSYS MR_CACHE_MAX_COUNT MR_CACHE_MAX_SIZE MR_CACHE_MONITOR
MR_CUDA_CACHE_MONITOR_ENABLED PROVIDER PROVIDER_PATH UNIVERSE_SIZE
"""
"""After `FI_`: https://ofiwg.github.io/libfabric/main/man/fabric.7.html, fi_mr.3.html, and what the core
defines for all providers: `fi_param_define(NULL, ...)` in src/ and prov/util of libfabric at the same commit."""
_LISTS = (("NCCL_", _NCCL), ("NCCL_", _NCCL_READS), ("OFI_NCCL_", _PLUGIN), ("FI_EFA_", _EFA), ("FI_", _FABRIC))
DOCUMENTED = frozenset(f"{begin}{name}" for begin, names in _LISTS for name in names.split())


def documented_nccl_settings(case: Case) -> Iterator[Draft]:
    """Each name of `nccl` stands in a document: NCCL and libfabric pass over a misspelt one without a word."""
    workload = case.spec.workload
    for name in sorted(set(workload.nccl) - DOCUMENTED) if workload is not None else ():
        nearest = difflib.get_close_matches(name, DOCUMENTED, n=1)
        cure = f"write {nearest[0]}" if nearest else "see NVIDIA's and AWS's lists"
        cure += "; one that no document names goes into workload.env"
        yield error(f"workload.nccl.{name}", "no document names this variable", seen=name, cure=cure)


def efa_safe_settings(case: Case) -> Iterator[Draft]:
    """No variable of NCCL or libfabric works against EFA's plugin: refused in `nccl`, warned of in `env`."""
    workload, instance = case.spec.workload, case.facts.instance
    if workload is None or instance is None or not instance.efa_interfaces:
        return
    cure = "leave it out, and read in NCCL's log (NCCL_DEBUG=INFO) that it says `Selected provider is efa`"
    for section, settings in (("nccl", workload.nccl), ("env", workload.env)):
        against = error if section == "nccl" else warning
        for name in sorted(settings):
            if name in _AGAINST_EFA:
                yield against(f"workload.{section}.{name}", _AGAINST_EFA[name], seen=settings[name], cure=cure)
            elif name in _BETTER_LEFT:
                yield warning(
                    f"workload.{section}.{name}", _BETTER_LEFT[name], seen=settings[name], cure="leave it out"
                )
