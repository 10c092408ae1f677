"""What a compiled layer holds, on fake tensors: what it keeps from forward to backward pass, and what is alive within.

AOTAutograd traces a layer and chooses what is kept (`min_cut_rematerialization_partition`), as it does for Inductor.
Inductor then makes one kernel of many operations. By its own tables, a result has memory of its own where it leaves
the graph, or where an operation that is not fused (a matrix product, attention) makes or reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.distributed._tools.mem_tracker import MemTracker

Graph = Callable[[list[Any]], list[Any]]


class CompiledMemTracker(MemTracker):
    """Counts what compiled layers allocate; `torch.compile` computes plainly under other trackers."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def allocating() -> Callable[..., Any]:
    """Return a backend of `torch.compile` whose graphs allocate what Inductor's would, and compute nothing.

    What was compiled before is forgotten: beyond eight forms of one layer torch computes it plainly, without a word.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    torch._dynamo.reset()
    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=_allocate, bw_compiler=_allocate, partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table,
    )  # fmt: skip
    return backend


class _Storage:
    """Memory that tensors of a graph share: views lie in the storage of what they show."""

    def __init__(self, tensor: Tensor, first: int) -> None:
        self.size, self.first, self.last = int(tensor.untyped_storage().nbytes()), first, first
        """`first`: the place of the node that makes it. `last`: of its last reader."""
        self.is_real = self.is_result = False
        self.arguments = list[int]()
        """Numbers of the graph's arguments that lie in it; none where the graph makes it."""


def _allocate(module: fx.GraphModule, _: Any) -> Graph:
    nodes = list(module.graph.nodes)
    results, storages = nodes[-1].args[0], _storages(nodes)

    def run(arguments: list[Any]) -> list[Any]:
        memory = dict[int, Tensor]()
        kept = {
            key: arguments[each.arguments[0]] for key, each in storages.items() if each.arguments and each.is_result
        }
        for place in range(len(nodes)):
            for key, each in storages.items():
                if each.first == place and each.is_real and not each.arguments:
                    memory[key] = torch.empty(each.size, dtype=torch.uint8)
            for key, each in storages.items():  # an operation's result lies beside what it reads
                if each.last == place and not each.is_result:
                    memory.pop(key, None)
                    for number in each.arguments:
                        arguments[number] = None
        arguments.clear()  # the list is ours: who called does not keep it
        return [_result(node, kept, memory) for node in results]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _storages(nodes: list[fx.Node]) -> dict[int, _Storage]:
    storages = dict[int, _Storage]()
    places, arguments = {node: place for place, node in enumerate(nodes)}, 0
    for node, place in places.items():
        is_argument = node.op == "placeholder"
        if isinstance(node.meta.get("val"), Tensor):
            storage = storages.setdefault(_key(node), _Storage(node.meta["val"], place))
            storage.last = max(storage.last, place, *(places[reader] for reader in node.users), 0)
            storage.is_result |= any(reader.op == "output" for reader in node.users)
            storage.is_real |= storage.is_result or _is_kernel(node) or any(map(_is_kernel, node.users))
            storage.arguments += [arguments] if is_argument else []
        arguments += is_argument
    return storages


def _result(node: Any, kept: dict[int, Tensor], memory: dict[int, Tensor]) -> Any:
    if not isinstance(node, fx.Node) or not isinstance(node.meta["val"], Tensor):
        return node.meta["val"] if isinstance(node, fx.Node) else node
    value, key = node.meta["val"], _key(node)
    base = kept[key] if key in kept else memory[key].view(value.dtype)
    return base.as_strided(value.shape, value.stride(), value.storage_offset())


def _key(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _is_kernel(node: fx.Node) -> bool:
    """Whether Inductor does not fuse a node; several results of one come as items of a tuple."""
    from torch._inductor.lowering import fallbacks, needs_realized_inputs

    target = node.target
    if node.op != "call_function":
        return False
    is_listed = target in fallbacks or target in needs_realized_inputs
    is_named = target is operator.getitem or target is torch.ops.aten.addmm.default
    return is_listed or is_named or isinstance(target, HigherOrderOperator)
