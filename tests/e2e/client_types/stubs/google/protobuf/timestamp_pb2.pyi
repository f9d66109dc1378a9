from google.protobuf.message import Message

class Timestamp(Message):
    seconds: int
    nanos: int
