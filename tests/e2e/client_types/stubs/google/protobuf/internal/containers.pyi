from abc import ABCMeta
from typing import Any, MutableMapping, MutableSequence, TypeVar

from google.protobuf.message import Message

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M", bound=Message)

class RepeatedScalarFieldContainer(MutableSequence[V], metaclass=ABCMeta): ...

class RepeatedCompositeFieldContainer(MutableSequence[M], metaclass=ABCMeta):
    def add(self, **fields: Any) -> M: ...

class ScalarMap(MutableMapping[K, V], metaclass=ABCMeta): ...
