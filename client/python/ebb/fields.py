"""From Python values to request messages: prompts, policies, and fields by name, enums by their short names."""
from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from google.protobuf.message import Message

from ebb.v1 import eviction_pb2, inference_pb2, policy_pb2

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, str]], inference_pb2.Prompt]
Policy = Union[str, policy_pb2.PolicySpec]


class Options(TypedDict, total=False):
    """How an answer is made: Sampling, Stopping and Speculation of ebb.v1, which say what each means and its default."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: Mapping[int, float]
    seed: int
    max_tokens: int
    stop: Sequence[str]
    stop_tokens: Sequence[int]
    ignore_eos: bool
    logprobs: int
    ngram: bool
    draft_model: str
    draft_tokens_max: int


class GenerateOptions(Options, total=False):
    """Options, and fields of GenerateRequest."""

    block_size: int
    expected_generation: int


class DecodeOptions(Options, total=False):
    """Options, and fields of DecodeRequest."""

    expected_generation: int


class PrefillOptions(TypedDict, total=False):
    """Fields of PrefillRequest."""

    block_size: int
    expected_generation: int


class SessionOptions(TypedDict, total=False):
    """Fields of CreateSessionRequest; `sampling` is a mapping of Options, `ttl` is in seconds."""

    model: str
    sampling: Mapping[str, Any]
    block_size: int
    ttl: float
    end_user: str


class ForkOptions(TypedDict, total=False):
    """Fields of ForkSessionRequest, as SessionOptions."""

    sampling: Mapping[str, Any]
    ttl: float
    expected_generation: int
    reserve_copies: bool


class VerifyOptions(Options, total=False):
    """Sampling, and fields of VerifyRequest; `mode` is "auto" or "manual"."""

    mode: str
    draft_probabilities: Sequence[inference_pb2.DraftDistribution]
    expected_generation: int


class EditOptions(TypedDict, total=False):
    """Fields of EditRequest; `mode` is "recompute_tail", "reposition" or "recompute_span"."""

    mode: str
    window: int
    restore: bool
    require_exact: bool
    block_size: int
    expected_generation: int


class EvictOptions(TypedDict, total=False):
    """Fields of EvictRequest."""

    dry_run: bool
    expected_generation: int
    list_victims: bool


class PlanOptions(TypedDict, total=False):
    """Fields of PlanEvictionRequest; `modifier` is "caote" or "fast_caote"."""

    keep: int
    evict: int
    sinks: int
    recent: int
    modifier: str


class PolicyOptions(TypedDict, total=False):
    """Fields of PolicySpec and of its trigger, protection, schedule and cache; enums by their short names, such as
    modifier="caote". `allocation` is a name, or a mapping of one: {"pyramid": {"beta": 4}}. The scorer's own are taken, too."""

    budget: int
    budget_ratio: float
    overflow: int
    slack: int
    max_drop: int
    sinks: int
    recent: int
    when: str
    every_n: int
    then: str
    grow_max: int
    modifier: str
    allocation: Union[str, Mapping[str, Mapping[str, Any]]]
    positions: str
    kv_dtype: str
    rope_cache: str
    scope: str
    reduction: str


def user(text: str) -> Mapping[str, str]:
    """A user's turn, for a prompt that is a chat: [user("Where is the lamp?")]."""
    return {"role": "user", "content": text}


def system(text: str) -> Mapping[str, str]:
    return {"role": "system", "content": text}


def assistant(text: str) -> Mapping[str, str]:
    return {"role": "assistant", "content": text}


def to_prompt(prompt: Prompt) -> inference_pb2.Prompt:
    """Text is plain text, messages are a chat, integers are token ids, a Prompt is what it is."""
    if isinstance(prompt, inference_pb2.Prompt):
        return prompt
    if isinstance(prompt, str):
        return inference_pb2.Prompt(text=prompt)
    entries: List[Any] = list(prompt)
    if entries and all(isinstance(entry, Mapping) for entry in entries):
        return inference_pb2.Prompt(chat={"messages": [inference_pb2.ChatMessage(**entry) for entry in entries]})
    return inference_pb2.Prompt(tokens={"ids": entries})


def policy(scorer: str, /, **choices: Any) -> policy_pb2.PolicySpec:
    """policy("h2o", budget=256, sinks=4, modifier="caote"): see PolicyOptions; a scorer's parameters by their names."""
    spec = policy_pb2.PolicySpec()
    _choose(spec, "scorer", scorer)
    allocation = choices.pop("allocation", None)
    if allocation is not None:
        (name, parameters), = ({allocation: {}} if isinstance(allocation, str) else allocation).items()
        _choose(spec, "allocation", name)
        fill(getattr(spec, name), **parameters)
    parts = [getattr(spec, scorer), spec.trigger, spec.protect, spec.schedule, spec.cache, spec]
    for name, value in choices.items():
        part = next((part for part in parts if name in part.DESCRIPTOR.fields_by_name), None)
        if part is None:
            raise TypeError(f"a policy of {scorer} has no {name!r}")
        fill(part, **{name: value})
    return spec


def to_policy(given: Optional[Policy]) -> Optional[policy_pb2.PolicySpec]:
    return policy(given) if isinstance(given, str) else given


def _choose(spec: policy_pb2.PolicySpec, oneof: str, name: str) -> None:
    arms = [field.name for field in spec.DESCRIPTOR.oneofs_by_name[oneof].fields]
    if name not in arms:
        raise ValueError(f"no {oneof} {name!r}; there are {', '.join(arms)}")
    getattr(spec, name).SetInParent()


def fill(message: Any, **fields: Any) -> Any:
    """Sets fields of a message by name; None leaves one unset. Returns the message."""
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise TypeError(f"{message.DESCRIPTOR.name} has no {name!r}")
        if value is None:
            continue
        if field.enum_type is not None and isinstance(value, str):
            setattr(message, name, _number(field.enum_type, value))
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, name).update(value)
        elif field.label == field.LABEL_REPEATED:
            getattr(message, name).extend(value)
        elif isinstance(value, Message):
            getattr(message, name).CopyFrom(value)
        elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
            getattr(message, name).FromNanoseconds(round(value * 1e9))
        elif field.message_type is not None:
            fill(getattr(message, name), **value)
        else:
            setattr(message, name, value)
    return message


def _number(enum: Any, name: str) -> int:
    """MODIFIER_CAOTE for caote; the whole name is taken, too."""
    wanted = name.upper()
    for value in enum.values:
        if wanted in (value.name, value.name[len(_prefix(enum)):]):
            return value.number
    names = ", ".join(value.name[len(_prefix(enum)):].lower() for value in enum.values if value.number)
    raise ValueError(f"no {name!r} in {enum.name}; there are {names}")


def _prefix(enum: Any) -> str:
    """What all names but perhaps the zero's begin with: MODIFIER_."""
    head = enum.values[0].name[:-len("UNSPECIFIED")]
    return head if all(value.name.startswith(head) for value in enum.values) else ""


def with_options(request: Any, options: Mapping[str, Any]) -> Any:
    """Sets each option where it belongs: in the request itself, or in its sampling, stopping or speculation."""
    parts = [name for name in ("sampling", "stopping", "speculation") if name in request.DESCRIPTOR.fields_by_name]
    for name, value in options.items():
        if name in request.DESCRIPTOR.fields_by_name:
            fill(request, **{name: value})
            continue
        part = next((part for part in parts if name in getattr(request, part).DESCRIPTOR.fields_by_name), None)
        if part is None:
            raise TypeError(f"{request.DESCRIPTOR.name} has no {name!r}")
        fill(getattr(request, part), **{name: value})
    return request


def generate_request(session: str, prompt: Prompt, options: Mapping[str, Any]) -> inference_pb2.GenerateRequest:
    request = with_options(inference_pb2.GenerateRequest(session=session, prompt=to_prompt(prompt)), options)
    if request.n > 1:
        raise ValueError("an Answer is one: for several, fork the session, or call stubs.inference.Generate")
    return request


def evict_request(session: str, range: Optional[Tuple[int, int]], keep: Optional[int], scorer: str, older_than: Optional[int],
                  slots: Optional[Mapping[Tuple[int, int], Sequence[int]]], options: Mapping[str, Any]) -> eviction_pb2.EvictRequest:
    request = fill(eviction_pb2.EvictRequest(session=session), **options)
    if range is not None:
        request.range.start, request.range.end = range
    if keep is not None or scorer:
        request.keep.count, request.keep.scorer = keep or 0, scorer
    if slots is not None:
        request.slots.lanes.extend(eviction_pb2.LaneSlots(layer=layer, head=head, slots=lane) for (layer, head), lane in slots.items())
    return fill(request, older_than=older_than)


def plan_request(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> eviction_pb2.PlanEvictionRequest:
    """A row has fields of PlanRow; NumPy arrays become the bytes that it takes."""
    request = fill(eviction_pb2.PlanEvictionRequest(), **options)
    for row in rows:
        request.rows.add(**{name: value.astype("<i4" if name == "tokens" else "<f4").tobytes() if hasattr(value, "astype") else value
                            for name, value in row.items()})
    return request


def edit_request(session: str, spans: Sequence[Tuple[int, int, Union[str, Sequence[int], None]]],
                 options: Mapping[str, Any]) -> inference_pb2.EditRequest:
    """A span is (start, end, text or token ids or None to delete)."""
    request = fill(inference_pb2.EditRequest(session=session), **options)
    for start, end, content in spans:
        span = request.spans.add(start=start, end=end)
        if isinstance(content, str):
            span.text = content
        elif content is not None:
            span.tokens.ids.extend(content)
    return request
