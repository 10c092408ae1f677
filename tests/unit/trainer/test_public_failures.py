"""Texts of public failure reports and of libraries' sources: what a rank calls its end, and what a supervisor that only
reads the lines of a job calls it."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from trainer.contract.exits import GPU, MEMORY, OPEN_FILES, PEER_LOST, PROCESSES
from trainer.errors import classify
from trainer.supervisor import ends
from trainer.supervisor.failures import LastWords
from trainer.supervisor.in_place.generations import refusal


class Report(NamedTuple):
    source: str
    """Issue of that repository on GitHub, or where the text stands."""
    kind: str
    """The error's class, with its module."""
    text: str
    reason: str
    of_lines: str | None = None
    """By the job's lines alone, where that is another reason; empty: nothing is known."""


NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled {} error (run with NCCL_DEBUG=INFO for "
    "details), NCCL version 2.21.5\n"
)
SYSTEM = NCCL.format("system") + (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\n"
)
CUDA = NCCL.format("cuda") + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
DIST, STORE = "torch.distributed.DistBackendError", "torch.distributed.DistStoreError"
REPORTS = (
    # Memory of the host, of /dev/shm and of the GPU.
    Report("deepseek-ai/DeepEP#143, as torch prints it", DIST,
           SYSTEM + "Call to ibv_create_cq failed with error Cannot allocate memory", MEMORY),
    Report("vllm-project/vllm#14537", DIST,
           SYSTEM + "Error while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384)", MEMORY),
    Report("hkchengrex/STCN#132", "RuntimeError",
           "DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are "
           "out of shared memory. Please try to raise your shared memory limit.", MEMORY),
    Report("c10/core/impl/alloc_cpu.cpp of torch", "RuntimeError",
           "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
           "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)", MEMORY),
    Report("sicxu/Deep3DFaceRecon_pytorch#147", "RuntimeError", "CUDA error: out of memory" + HINT, MEMORY),
    Report("deepspeedai/DeepSpeed#3869", "torch.cuda.OutOfMemoryError",
           "CUDA out of memory. Tried to allocate 978.00 MiB (GPU 0; 4.00 GiB total capacity; 1.68 GiB already "
           "allocated; 0 bytes free; 2.72 GiB reserved in total by PyTorch)", MEMORY),
    Report("QwenLM/Qwen3#873", "RuntimeError",
           "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", MEMORY),
    Report("NVIDIA/nccl#1235, as torch prints it", DIST, CUDA + "Cuda failure 'out of memory'", MEMORY),
    Report("numpy/_core/_exceptions.py of numpy", "numpy._core._exceptions._ArrayMemoryError",
           "Unable to allocate 128. GiB for an array with shape (17179869184,) and data type float64", MEMORY),
    # Open files.
    Report("ML-GSAI/SMDM#3", "RuntimeError",
           "unable to open shared memory object </torch_710863_755204907_419> in read-write mode: Too many open files "
           "(24)", OPEN_FILES),
    Report("facebookresearch/detectron2#3953", "RuntimeError",
           "Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
           "`ulimit -n` in the shell or change the sharing strategy by calling "
           "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code", OPEN_FILES),
    Report("pytorch/pytorch#973", "RuntimeError", "received 0 items of ancdata", OPEN_FILES),
    Report("pytorch/tensorpipe#460", "RuntimeError",
           'In connectFromLoop at tensorpipe/transport/uv/uv.h:297 "rv < 0: too many open files"', OPEN_FILES),
    Report("horovod/horovod#540", "OSError", "[Errno 24] Too many open files", OPEN_FILES),
    Report("gloo of torch 2.13, of a process with no descriptor left", "RuntimeError",
           "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:24] rv != -1. -1 vs -1. socket: "
           "Too many open files", OPEN_FILES),
    Report("gloo of torch 2.13, of a process with one descriptor left", "RuntimeError",
           "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/loop.cc:105] fd_ != -1. -1 vs -1. "
           "epoll_create: Too many open files", OPEN_FILES),
    # Processes.
    Report("Lightning-AI/litData#280", "RuntimeError", "can't start new thread", PROCESSES),
    Report("jayleicn/ClipBERT#41", "BlockingIOError", "[Errno 11] Resource temporarily unavailable", PROCESSES),
    # Another rank.
    Report("RVC-Project/Retrieval-based-Voice-Conversion-WebUI#1882", "RuntimeError",
           "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10895",
           PEER_LOST),
    Report("RVC-Project/Retrieval-based-Voice-Conversion-WebUI#1882", "RuntimeError",
           "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: Connection reset by "
           "peer", PEER_LOST),
    Report("NVIDIA/nccl#1232, as torch prints it", DIST,
           NCCL.format("remote") + "ncclRemoteError: A call failed possibly due to a network error or a remote process "
           "exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer node2<42830>",
           PEER_LOST),
    Report("Liuziyu77/Visual-RFT#123", STORE, "Timed out after 901 seconds waiting for clients. 1/3 clients joined.",
           PEER_LOST),
    Report("modelscope/DiffSynth-Studio#538", "torch.distributed.DistNetworkError",
           "The client socket has timed out after 1800000ms while trying to connect to (172.17.0.9, 46229).",
           PEER_LOST),
    Report("pytorch/pytorch#131808", STORE, "wait timeout after 100ms, keys: /the_key", PEER_LOST),
    Report("alibaba/Pai-Megatron-Patch#468", STORE, "Socket Timeout", PEER_LOST),
    # This rank's GPU.
    Report("NVIDIA/nccl#1410", DIST, CUDA + "Cuda failure 1 'invalid argument'", GPU),
    Report("pytorch/pytorch#170045", DIST, CUDA + "Cuda failure 999 'unknown error'", GPU),
    Report("deepspeedai/DeepSpeed#7150", "RuntimeError", "CUDA error: invalid argument" + HINT, GPU),
    Report("layumi/Person_reID_baseline_pytorch#286, of another handle", "RuntimeError",
           "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", GPU),
    # None of these.
    Report("scikit-learn/scikit-learn#14485", "ImportError",
           "/usr/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block", "internal", ""),
    Report("pytorch/examples#813", "BlockingIOError",
           "[Errno 11] Resource temporarily unavailable: 'checkpoint.pth.tar'", "storage", ""),
    Report("milesial/Pytorch-UNet#517", "RuntimeError", "Pin memory thread exited unexpectedly", "internal", ""),
)  # fmt: skip


class DistError(RuntimeError):
    """As torch's errors of its exchanges, which are such."""


def error_of(report: Report) -> Exception:
    """Return the error as a rank has it."""
    if match := re.fullmatch(r"\[Errno (\d+)\] ([^:]+)(?:: '(.+)')?", report.text):
        return OSError(int(match[1]), match[2], match[3])
    kinds = {"ImportError": ImportError, "numpy._core._exceptions._ArrayMemoryError": MemoryError}
    return kinds.get(report.kind, DistError)(report.text)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.source} {report.reason}")
def test_a_rank_names_the_cause_that_a_public_report_has(report: Report) -> None:
    assert classify(error_of(report)).reason == report.reason


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.source} {report.reason}")
def test_a_supervisor_names_it_by_the_jobs_lines(report: Report) -> None:
    words = LastWords()
    trace = 'Traceback (most recent call last):\n  File "train.py", line 6\n'
    for line in f"{trace}{report.kind}: {report.text}".splitlines():
        words.hear(f"[rank3]: {line}")
    end = ends.failure_end(1, words, (), progress=ends.Made(nodes=2))
    assert end.reason == (report.reason if report.of_lines is None else report.of_lines) and end.rank == 3


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.source} {report.reason}")
def test_only_an_error_of_the_gpu_is_refused_a_restart_in_place(report: Report) -> None:
    failure = classify(error_of(report))
    refused = refusal(ends.End(int(failure.exit_code), str(failure), failure.reason))
    assert ("GPU" in refused) is (report.reason == GPU) and bool(refused) is (report.reason in (GPU, "storage"))
