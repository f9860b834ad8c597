"""`stretto operator`: `ElasticJob` resources of a Kubernetes cluster as jobs of a service."""

import asyncio
import logging
import signal
import sys
from typing import Annotated

import typer

from stretto.cli.printing import say
from stretto.cli.service import Token, Url


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
        str, typer.Option(help="Follow the resources of this namespace only; else those of all.")
    ] = "",
    print_crd: Annotated[
        bool,
        typer.Option("--print-crd", help="Print the CustomResourceDefinition for `kubectl apply -f -`."),
    ] = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Submit each ElasticJob of a Kubernetes cluster to a service, and show there what becomes of it."""
    from stretto.model import InputError

    try:
        from stretto.kubernetes_operator.crd import definition_text
    except ModuleNotFoundError as missing:
        raise InputError(f"this needs {missing.name}: install stretto[kubernetes,serve]") from None
    if print_crd:
        typer.echo(definition_text(), nl=False)
        return
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("stretto").setLevel(logging.INFO)
    asyncio.run(_operate(kubeconfig, kube_context, namespace, url, token))


async def _operate(kubeconfig: str, context: str, namespace: str, url: str, token: str) -> None:
    """Follow resources until a signal comes."""
    from stretto.backends.kubernetes.api import Api, Refusal, configuration
    from stretto.backends.protocol import BackendUnreachable
    from stretto.client import Client
    from stretto.kubernetes_operator.controller import Operator
    from stretto.kubernetes_operator.elastic_job import ELASTIC_JOBS
    from stretto.model import InputError

    api = Api(configuration(kubeconfig, context))
    try:
        await api.call("GET", ELASTIC_JOBS.path(namespace), params={"limit": 1})
    except Refusal as refusal:
        await api.close()
        hint = "; `stretto operator --print-crd | kubectl apply -f -` defines them"
        hint = hint if refusal.code == 404 else ""
        raise InputError(f"ElasticJob resources at {api.server}: {refusal}{hint}") from None
    except BackendUnreachable as failure:
        await api.close()
        raise InputError(str(failure)) from None
    running = asyncio.ensure_future(Operator(api, Client(url, token, say=say), namespace).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    say(f"following ElasticJob resources of {namespace or 'all namespaces'} at {api.server}")
    try:
        await running
    except asyncio.CancelledError:  # a signal came
        pass
    finally:
        await api.close()
