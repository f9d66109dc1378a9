from google.protobuf.message import Message

class Duration(Message):
    seconds: int
    nanos: int
    def FromNanoseconds(self, nanos: int) -> None: ...
