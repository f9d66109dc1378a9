"""Server reflection, asked as grpcurl asks it; Debian 12 has neither grpcurl nor Python's package of these messages."""
import pathlib
import subprocess
import tempfile

from patience import connected

import grpc
from google.protobuf import descriptor_database, descriptor_pb2, descriptor_pool, message_factory

# Of gRPC's reflection.proto what is used here.
PROTO = """syntax = "proto3";
package grpc.reflection.v1alpha;
message ServerReflectionRequest {
  oneof message_request { string file_by_filename = 3; string file_containing_symbol = 4; string list_services = 7; }
}
message ServerReflectionResponse {
  FileDescriptorResponse file_descriptor_response = 4;
  ListServiceResponse list_services_response = 6;
  ErrorResponse error_response = 7;
}
message FileDescriptorResponse { repeated bytes file_descriptor_proto = 1; }
message ListServiceResponse { repeated ServiceResponse service = 1; }
message ServiceResponse { string name = 1; }
message ErrorResponse { int32 error_code = 1; string error_message = 2; }
"""


def compiled(import_path, *files):
    """A pool with what protoc makes of `files` and all that they import."""
    with tempfile.NamedTemporaryFile() as made:
        subprocess.run(["protoc", f"--proto_path={import_path}", "--include_imports", f"--descriptor_set_out={made.name}", *files], check=True, timeout=60)
        found = descriptor_pb2.FileDescriptorSet.FromString(made.read())
    return pool(found.file)


def pool(files):
    known = descriptor_database.DescriptorDatabase()  # in any order, unlike a pool
    for file in files:
        known.Add(file)
    return descriptor_pool.DescriptorPool(known)


def message_class(descriptor):
    return message_factory.MessageFactory(descriptor.file.pool).GetPrototype(descriptor)


def ask(address, requests):
    """The server's answers to [{field: value}], one after another on one call."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "reflection.proto").write_text(PROTO, encoding="utf-8")
        messages = compiled(folder, "reflection.proto")
    request, response = (message_class(messages.FindMessageTypeByName(f"grpc.reflection.v1alpha.ServerReflection{name}")) for name in ("Request", "Response"))
    with connected(grpc.insecure_channel(address)) as channel:
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", request_serializer=request.SerializeToString,
                                     response_deserializer=response.FromString)
        answers = list(call((request(**each) for each in requests), timeout=60))
    for each in answers:
        assert not each.error_response.error_code, each.error_response.error_message
    return answers


def services(address):
    (answer,) = ask(address, [{"list_services": "*"}])
    return [service.name for service in answer.list_services_response.service]


def files(address, symbol):
    """A pool of the file that says what `symbol` is, and all that it imports, as far as the server tells."""
    found, asked = {}, [{"file_containing_symbol": symbol}]
    while asked:
        new = [descriptor_pb2.FileDescriptorProto.FromString(file) for answer in ask(address, asked) for file in answer.file_descriptor_response.file_descriptor_proto]
        found.update({file.name: file for file in new})
        asked = [{"file_by_filename": name} for name in sorted({name for file in found.values() for name in file.dependency} - set(found))]
    return pool(found.values())
