"""`deep_gemm.utils.dist`: start of a rank, printing by one rank, gathering of tensors with different row counts."""

import os
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

_this_process = {"local_rank": 0}


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, Any]:
    """Joins NCCL with `num_local_ranks` ranks on this node, takes GPU `local_rank` and makes it torch's default device.

    Nodes come from WORLD_SIZE and RANK (1 and 0 where unset), the meeting point from MASTER_ADDR and MASTER_PORT.
    Returns rank, number of ranks, and a new group of all.
    """
    num_nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "8361")
    _this_process["local_rank"] = local_rank
    torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://{address}:{port}",
        rank=node * num_local_ranks + local_rank,
        world_size=num_nodes * num_local_ranks,
        device_id=torch.device("cuda", local_rank),
    )
    torch.set_default_device("cuda")
    return dist.get_rank(), dist.get_world_size(), dist.new_group(list(range(dist.get_world_size())))


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Collective: prints on every rank, or on each node's first rank only; then a barrier."""
    if not once_in_node or _this_process["local_rank"] == 0:
        print(s, flush=True)
    dist.barrier()


def uneven_all_gather(tensor: Tensor, dim: int = 0, group: Optional[Any] = None) -> Tensor:
    """Collective: the ranks' tensors joined along `dim`, whose extent may differ from rank to rank."""
    num_ranks = dist.get_world_size(group)
    extents = torch.empty(num_ranks, dtype=torch.int64, device=tensor.device)
    mine = torch.tensor([tensor.shape[dim]], dtype=torch.int64, device=tensor.device)
    dist.all_gather_into_tensor(extents, mine, group=group)
    counts = [int(count) for count in extents.tolist()]
    first = tensor.movedim(dim, 0)
    # Bytes: not every torch gathers FP8.
    raw = first.contiguous().view(torch.uint8) if first.element_size() == 1 else first.contiguous()
    padded = raw.new_zeros((max(counts), *raw.shape[1:]))
    padded[: raw.shape[0]] = raw
    gathered = raw.new_empty((num_ranks * max(counts), *raw.shape[1:]))
    if gathered.numel() != 0:
        dist.all_gather_into_tensor(gathered, padded, group=group)
    parts = [gathered[rank * max(counts) : rank * max(counts) + count] for rank, count in enumerate(counts)]
    return torch.cat(parts).view(tensor.dtype).movedim(0, dim)
