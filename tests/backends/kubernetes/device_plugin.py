"""A device plug-in for a kubelet of the tests, by the API v1beta1: its GPUs are numbers.

A kubelet chooses which of them a container gets; the container finds their numbers in CUDA_VISIBLE_DEVICES.
Run as `python device_plugin.py COUNT` in the namespaces of a node. A kubelet that begins again has forgotten
its plug-ins and removed their sockets: this one then registers anew.
"""

import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FOLDER = Path("/var/lib/kubelet/device-plugins")  # where every kubelet looks, whatever its other folders
KUBELET, OURS = FOLDER / "kubelet.sock", FOLDER / "tests.sock"
RESOURCE, VERSION, PACKAGE = "nvidia.com/gpu", "v1beta1", "v1beta1"
LOOK_S = 0.3

Field = descriptor_pb2.FieldDescriptorProto
# Messages of the API that are needed here: (number, name, of which type, whether repeated).
MESSAGES: dict[str, list[tuple[int, str, str, bool]]] = {
    "Empty": [],
    "DevicePluginOptions": [],
    "RegisterRequest": [
        (1, "version", "", False),
        (2, "endpoint", "", False),
        (3, "resource_name", "", False),
    ],
    "Device": [(1, "ID", "", False), (2, "health", "", False)],
    "ListAndWatchResponse": [(1, "devices", "Device", True)],
    "ContainerAllocateRequest": [(1, "devicesIDs", "", True)],
    "AllocateRequest": [(1, "container_requests", "ContainerAllocateRequest", True)],
    "Variable": [(1, "key", "", False), (2, "value", "", False)],  # an entry of a map is such a message
    "ContainerAllocateResponse": [(1, "envs", "Variable", True)],
    "AllocateResponse": [(1, "container_responses", "ContainerAllocateResponse", True)],
}


def messages() -> dict[str, Any]:
    """Classes of the messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="device_plugin.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, is_repeated in fields:
            message.field.add(
                name=field,
                number=number,
                type=Field.TYPE_MESSAGE if kind else Field.TYPE_STRING,
                type_name=f".{PACKAGE}.{kind}" if kind else None,
                label=Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


class Plugin:
    """What a kubelet asks."""

    def __init__(self, count: int) -> None:
        self.of = messages()
        devices = [self.of["Device"](ID=str(number), health="Healthy") for number in range(count)]
        self.devices = self.of["ListAndWatchResponse"](devices=devices)

    def options(self, _: Any, __: grpc.ServicerContext) -> Any:
        """Nothing is to be done before a container starts."""
        return self.of["DevicePluginOptions"]()

    def list_and_watch(self, _: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """All GPUs, once: they stay as they are."""
        yield self.devices
        while context.is_active():
            time.sleep(LOOK_S)

    def allocate(self, asked: Any, _: grpc.ServicerContext) -> Any:
        """For each container what it is to find in its environment."""
        variable, given = self.of["Variable"], self.of["ContainerAllocateResponse"]
        return self.of["AllocateResponse"](
            container_responses=[
                given(envs=[variable(key="CUDA_VISIBLE_DEVICES", value=",".join(sorted(each.devicesIDs)))])
                for each in asked.container_requests
            ]
        )

    def server(self) -> grpc.Server:
        """Listens on our socket."""

        def method(kind: Any, answer: Any, request: str) -> Any:
            return kind(answer, self.of[request].FromString, lambda message: message.SerializeToString())

        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": method(unary, self.options, "Empty"),
            "ListAndWatch": method(stream, self.list_and_watch, "Empty"),
            "Allocate": method(unary, self.allocate, "AllocateRequest"),
        }
        server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.method_handlers_generic_handler(f"{PACKAGE}.DevicePlugin", methods)
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix://{OURS}")
        server.start()
        return server

    def register(self) -> None:
        """Have the kubelet know us."""
        request = self.of["RegisterRequest"](version=VERSION, endpoint=OURS.name, resource_name=RESOURCE)
        with grpc.insecure_channel(f"unix://{KUBELET}") as channel:
            call = channel.unary_unary(
                f"/{PACKAGE}.Registration/Register",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=self.of["Empty"].FromString,
            )
            call(request, timeout=10)


def main() -> None:
    """Serve each kubelet that comes, until killed."""
    plugin, server, known = Plugin(int(sys.argv[1])), None, None
    while True:
        with suppress(OSError, grpc.RpcError):  # no kubelet is there, or it is just coming up
            kubelet = KUBELET.stat().st_ino
            if kubelet != known or not OURS.exists():
                if server is not None:
                    server.stop(0).wait()
                OURS.unlink(missing_ok=True)
                server = plugin.server()
                plugin.register()
                known = kubelet
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
