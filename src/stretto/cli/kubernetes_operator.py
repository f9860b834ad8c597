"""`stretto operator`: `ElasticJob` resources of a Kubernetes cluster as jobs of a service."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.printing import say
from stretto.cli.service import Token, Url

if TYPE_CHECKING:
    from stretto.backends.kubernetes.api import Api


def operator(
    kubeconfig: Annotated[
        str,
        typer.Option(
            help="The kubeconfig file. Else the service account of our own pod, $KUBECONFIG, or "
            "~/.kube/config."
        ),
    ] = "",
    kube_context: Annotated[str, typer.Option("--context", help="The context of that file.")] = "",
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Follow the resources of this namespace only, of several if repeated; else of all."
        ),
    ] = None,
    print_crd: Annotated[
        bool,
        typer.Option("--print-crd", help="Print the CustomResourceDefinition for `kubectl apply -f -`."),
    ] = False,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate",
            help="Follow other people's pods instead, which wait behind the scheduling gate "
            "`stretto.dev/gate` in namespaces with the label `stretto.dev/gate=true`.",
        ),
    ] = False,
    gpu_resource: Annotated[
        str,
        typer.Option(
            "--gpu-resource",
            help="With --gate: by which pods ask for GPUs, like example.org/gpu. As of the service.",
        ),
    ] = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Submit each ElasticJob of a Kubernetes cluster to a service, and show there what becomes of it."""
    from stretto.errors import InputError

    try:
        from stretto.kubernetes_operator.crd import definition_text
    except ModuleNotFoundError as missing:
        raise InputError(f"this needs {missing.name}: install stretto[kubernetes,serve]") from None
    if print_crd:
        typer.echo(definition_text(), nl=False)
        return
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("stretto").setLevel(logging.INFO)
    namespaces = tuple(dict.fromkeys(namespace or ()))
    if gate and namespaces:
        raise InputError(f"--namespace {namespaces[0]}: expected none with --gate, which goes by labels")
    if gpu_resource and not gate:
        raise InputError(f"--gpu-resource {gpu_resource}: expected with --gate only")
    if "" in namespaces:
        raise InputError("--namespace '': expected the name of a namespace")
    asyncio.run(_operate(kubeconfig, kube_context, namespaces, gate, gpu_resource, url, token))


async def _operate(
    kubeconfig: str,
    context: str,
    namespaces: Sequence[str],
    gate: bool,
    gpu_resource: str,
    url: str,
    token: str,
) -> None:
    """Follow resources, or gated pods, until a signal comes."""
    from stretto.backends.kubernetes.api import Api, configuration
    from stretto.backends.protocol import BackendUnreachable
    from stretto.client import Client
    from stretto.errors import InputError
    from stretto.kubernetes_operator.controller import Operator
    from stretto.kubernetes_operator.follower import Follower
    from stretto.kubernetes_operator.gated_pods_controller import GateOperator

    api = Api(configuration(kubeconfig, context))
    try:
        await (_check_gates(api) if gate else _check_resources(api, namespaces))
        client = Client(url, token, say=say)
        follower: Follower = (
            GateOperator(api, client, gpu_resource) if gate else Operator(api, client, namespaces)
        )
        running = asyncio.ensure_future(follower.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        what = (
            "gated pods" if gate else f"ElasticJob resources of {', '.join(namespaces) or 'all namespaces'}"
        )
        say(f"following {what} at {api.server}")
        with contextlib.suppress(asyncio.CancelledError):  # a signal came
            await running
    except BackendUnreachable as failure:
        raise InputError(str(failure)) from None
    finally:
        await api.close()


async def _check_resources(api: "Api", namespaces: Sequence[str]) -> None:
    """Raise InputError where the cluster has no such resources, or does not show them."""
    from stretto.backends.kubernetes.api import Refusal
    from stretto.errors import InputError
    from stretto.kubernetes_operator.elastic_job import ELASTIC_JOBS

    for namespace in namespaces or ("",):
        try:
            await api.call("GET", ELASTIC_JOBS.path(namespace), params={"limit": 1})
        except Refusal as refusal:
            hint = "; `stretto operator --print-crd | kubectl apply -f -` defines them"
            hint = hint if refusal.code == 404 else ""
            raise InputError(f"ElasticJob resources at {api.server}: {refusal}{hint}") from None


async def _check_gates(api: "Api") -> None:
    """Raise InputError where the cluster keeps no scheduling gates, or does not show pods and nodes."""
    from stretto.backends.kubernetes.api import NODES, PODS, Refusal
    from stretto.errors import InputError
    from stretto.kubernetes_operator.gated_pods_controller import NAMESPACES, check_version

    check_version(api.server, await api.version())
    for kind in (PODS, NODES, NAMESPACES):
        try:
            await api.call("GET", kind.path(), params={"limit": 1})
        except Refusal as refusal:
            raise InputError(f"--gate: {kind.plural} at {api.server}: {refusal}") from None
