"""`stretto clusters`: what there is to schedule on."""

from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

app = typer.Typer(help="List clusters, or show one.", no_args_is_help=True)


@app.command("list")
def list_clusters(as_json: options.Json = False) -> None:
    """List the built-in clusters."""
    from stretto.clusters import built_in_clusters, read_cluster
    from stretto.model.cluster import node_groups

    clusters = [read_cluster(name) for name in built_in_clusters()]
    rows = [
        {
            "name": cluster.name,
            "gpus": cluster.total_gpus,
            "nodes": len(cluster.nodes),
            "types": ", ".join(f"{count} × {gpus} {name}" for name, count, gpus in node_groups(cluster)),
        }
        for cluster in clusters
    ]
    if as_json:
        show_json({"clusters": rows})
        return
    names = ["name", "gpus", "nodes", "types"]
    show_table("Built-in clusters", names, [[str(row[name]) for name in names] for row in rows])


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A cluster file or a built-in name.")],
    as_json: options.Json = False,
) -> None:
    """Show the GPU types and nodes of a cluster."""
    from stretto.clusters import read_cluster_file
    from stretto.model.cluster import node_groups

    file = read_cluster_file(name)
    cluster = file.cluster
    groups = node_groups(cluster)
    domains = list(zip(cluster.levels, cluster.topology.sizes, strict=True))
    types = [
        {
            "type": gpu_type.name,
            "gpus": int(capacity),
            "nodes": [f"{count} × {gpus}" for kind, count, gpus in groups if kind == gpu_type.name],
            "memory_gb": gpu_type.memory_gb,
            "speed": gpu_type.speed,
            "stand_ins": gpu_type.stand_ins,
            "max_nodes_per_job": gpu_type.max_nodes_per_job or None,
            "aliases": list(gpu_type.aliases),
        }
        for gpu_type, capacity in zip(cluster.types, cluster.capacity, strict=True)
    ]
    if as_json:
        lenders = [
            {
                "name": lender.name,
                "type": lender.gpu_type,
                "nodes": lender.count,
                "gpus": lender.gpus * lender.count,
            }
            | {"headroom": lender.headroom, "demand": lender.demand or None}
            for lender in file.lenders
        ]
        levels = [{"level": level, "domains": count} for level, count in domains]
        shown = {"name": cluster.name, "gpus": cluster.total_gpus, "topology": levels, "types": types}
        show_json({**shown, "lenders": lenders})
        return
    names = ["type", "gpus", "nodes", "memory_gb", "speed", "stand_ins", "max_nodes_per_job", "aliases"]
    rows = [[_word(row[column]) for column in names] for row in types]
    show_table(f"{cluster.name}: {cluster.total_gpus} GPUs", names, rows)
    if domains:
        say("topology, outermost first: " + ", ".join(f"{count} × {level}" for level, count in domains))
    for lender in file.lenders:
        say(
            f"of these, {lender.count} nodes of {lender.gpus} {lender.gpu_type} belong to {lender.name}, "
            f"usable only while on loan (--set lend.rule=…); headroom {lender.headroom:.0%}"
        )


def _word(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
