"""Where arrays live: one mesh, and one table from logical axes to its axes.

The mesh is (data, fsdp, tensor). Rows of a batch are split over data and fsdp; parameters and
optimizer moments over fsdp along the model width and over tensor along heads, feed-forward and
vocabulary. Swapping the table is all that a different layout needs.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "layers": None,
}


def make_mesh(
    data: int = -1, fsdp: int = 1, tensor: int = 1, devices: list[jax.Device] | None = None
) -> Mesh:
    """A mesh over `devices` (default: all); data = -1 takes what the other two leave."""
    devices = jax.devices() if devices is None else devices
    if data == -1:
        data = len(devices) // (fsdp * tensor)
    if data * fsdp * tensor != len(devices):
        raise ValueError(
            f"mesh data={data} x fsdp={fsdp} x tensor={tensor} does not use up the "
            f"{len(devices)} devices; set the sizes in the config so that their product does"
        )
    grid = np.array(devices).reshape(data, fsdp, tensor)
    # Auto: the compiler places intermediate values. jax.make_mesh would say Explicit.
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Placement of an array with these logical axes.

    A dimension that the mesh does not divide (one kv head on two tensor devices) is replicated.
    """
    entries = []
    for axis, size in zip(axes, shape, strict=True):
        names = RULES[axis] if axis is not None else None
        parts = (names,) if isinstance(names, str) else names or ()
        pieces = int(np.prod([mesh.shape[name] for name in parts]))
        entries.append(names if size % pieces == 0 else None)
    return PartitionSpec(*entries)


def constrain(x: jax.Array, mesh: Mesh | None, axes: tuple[str | None, ...]) -> jax.Array:
    """Pins an intermediate value to the table's placement; without a mesh, nothing."""
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(axes, x.shape, mesh)))


def param_shardings(declarations: Any, mesh: Mesh) -> Any:
    """Tree of model.qwen3.Parameter -> tree of shardings."""
    return jax.tree.map(
        lambda p: NamedSharding(mesh, spec(p.axes, p.shape, mesh)),
        declarations,
        is_leaf=lambda node: hasattr(node, "axes"),
    )


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Any, shardings: Any) -> Any:
    """Puts every array where its sharding says; works when a process sees only some devices."""

    def put(leaf, target):
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, target, lambda index: host[index])

    return jax.tree.map(put, tree, shardings)
