"""What of a stream has come, and what to ask for after it broke.

A token that was sent is in the session's log whatever breaks the stream, and Decode with `resume_from` sends what is in it again. So a
broken stream is followed from its answer's first token, and what had come already is left out: stop texts and characters that the break
cut in two come out whole. Each token that comes again is compared with the one that came before.
"""
from __future__ import annotations

from typing import Any, List, Optional, Union

from ebb.errors import Error, NotResumable
from ebb.v1 import inference_pb2, session_pb2, usage_pb2

Request = Union[inference_pb2.PrefillRequest, inference_pb2.DecodeRequest, inference_pb2.GenerateRequest]
Message = Union[inference_pb2.PrefillResponse, inference_pb2.DecodeResponse]


class Progress:
    """Of one Prefill, Decode or Generate. Pure: it talks to nobody."""

    def __init__(self, request: Request):
        self.asked = request
        self.tokens: List[int] = []
        self.text = ""
        self.read = inference_pb2.PrefillResponse()  # the last that came
        self.last: Optional[inference_pb2.DecodeResponse] = None  # the one with usage and finish reason
        self.breaks = 0
        self._total: Optional[int] = None  # tokens of the prompt
        self._done = 0  # of these, in the session before the stream that runs now
        self._token_at = self._text_at = 0  # what of the answer this stream has sent
        self._sequence = 0
        if isinstance(request, inference_pb2.DecodeRequest):
            self._total = 0
        elif request.prompt.HasField("tokens"):
            self._total = len(request.prompt.tokens.ids)

    @property
    def is_whole(self) -> bool:
        """The last message has come: whatever becomes of the stream, there is nothing more to say."""
        if isinstance(self.asked, inference_pb2.PrefillRequest):
            return 0 < self.read.tokens_total == self.read.tokens_done
        return self.last is not None

    def begin(self, before: session_pb2.Session) -> Request:
        """The request, tied to the session as it stands: so it is known where the answer begins."""
        self._before = before
        return self._tied(self.asked, before)

    def take(self, message: Any) -> Optional[Message]:
        """What is new in a message; None when nothing is."""
        if isinstance(message, inference_pb2.GenerateResponse):
            message = message.prefill if message.HasField("prefill") else message.decode
        return self._take_block(message) if isinstance(message, inference_pb2.PrefillResponse) else self._take_tokens(message)

    def _take_block(self, message: inference_pb2.PrefillResponse) -> inference_pb2.PrefillResponse:
        self._total = self._done + message.tokens_total
        if self._done > 0:
            message.tokens_done += self._done
            message.tokens_total = self._total
        self.read = message
        return message

    def _take_tokens(self, message: inference_pb2.DecodeResponse) -> Optional[inference_pb2.DecodeResponse]:
        old = self.tokens[self._token_at:self._token_at + len(message.tokens)]
        if old != list(message.tokens[:len(old)]):
            raise self._stop("the session holds other tokens than those that came before the break")
        text = message.text[max(0, len(self.text) - self._text_at):]
        self._token_at += len(message.tokens)
        self._text_at += len(message.text)
        del message.tokens[:len(old)]
        message.text = text
        message.sequence = self._sequence
        self.tokens += message.tokens
        self.text += text
        if message.finish_reason:
            self.last = message
        elif not message.tokens and not text and not message.evicted_tokens:
            return None
        self._sequence += 1
        return message

    def after_break(self, error: Error, now: session_pb2.Session) -> Optional[Request]:
        """What to ask for next, the session being as `now`; None when nothing is left. NotResumable where the answer cannot go on
        exactly where it stopped."""
        self._error = error
        read = now.prompt_tokens - self._before.prompt_tokens
        made = now.tokens - self._before.tokens - read
        decodes = not isinstance(self.asked, inference_pb2.PrefillRequest)
        whole = read if self._total is None else self._total
        alone = now.generation <= self._generation + 1  # a call raises it once, however much it appends
        if (not self._done <= read <= whole or made < len(self.tokens) or (made > 0 and not (decodes and read == whole))
                or (self._total is None and not alone)):
            raise self._stop(f"{now.name} was changed by others after the stream broke")
        if made > 0 or self._prompt_is_in(read, now):
            if decodes:
                return self._rest_of_answer(now, self._before.tokens + read, made)
            self._finish_prompt(read, now)
            return None
        if read == 0:
            return self._tied(self.asked, now)
        assert not isinstance(self.asked, inference_pb2.DecodeRequest)  # it has no prompt, so that nothing of one is missing
        if not self.asked.prompt.HasField("tokens"):
            raise self._stop(f"{read} tokens of the prompt are in {now.name}; which are missing is known only of prompts of token ids")
        rest = self._tied(self.asked, now)
        rest.expected_generation = now.generation
        del rest.prompt.tokens.ids[:read]
        self._done = read
        return rest

    def _prompt_is_in(self, read: int, now: session_pb2.Session) -> bool:
        """Only a prompt's last block is shorter than the others."""
        if self._total is not None:
            return read == self._total
        assert not isinstance(self.asked, inference_pb2.DecodeRequest)  # whose total is 0
        return read % (self.asked.block_size or now.block_size) != 0

    def _rest_of_answer(self, now: session_pb2.Session, start: int, made: int) -> inference_pb2.DecodeRequest:
        assert not isinstance(self.asked, inference_pb2.PrefillRequest)  # it makes no answer
        if self.asked.stopping.HasField("logprobs") and made > 0:
            raise self._stop("log-probabilities of tokens that were sent are not kept")
        self._token_at = self._text_at = 0
        self._generation = now.generation
        rest = inference_pb2.DecodeRequest(session=now.name, resume_from=start, expected_generation=now.generation)
        for part in ("sampling", "stopping", "speculation"):
            if self.asked.HasField(part):
                getattr(rest, part).CopyFrom(getattr(self.asked, part))
        return rest

    def _finish_prompt(self, read: int, now: session_pb2.Session) -> None:
        """The whole prompt is in; only the message that says so was lost."""
        self.read = inference_pb2.PrefillResponse(
            tokens_done=read, tokens_total=read, cache_length=now.cache_length, generation=now.generation,
            usage=usage_pb2.Usage(prompt_tokens=read, cache_length=now.cache_length, session_tokens=now.tokens))

    def _stop(self, why: str) -> NotResumable:
        return NotResumable(self._error.code, f"{why} (the stream broke with {self._error})")

    def _tied(self, request: Any, session: session_pb2.Session) -> Any:
        """Refused where the session is not as it is now, or as the caller expects it."""
        self._generation = session.generation
        tied = type(request)()
        tied.CopyFrom(request)
        if not tied.HasField("expected_generation"):
            tied.expected_generation = session.generation
        return tied


class AnswerState:
    """What an answer has so far, and at its end."""

    def __init__(self, progress: Progress):
        self._progress = progress

    @property
    def text(self) -> str:
        return self._progress.text

    @property
    def tokens(self) -> List[int]:
        return self._progress.tokens

    @property
    def breaks(self) -> int:
        """How often the stream broke and went on."""
        return self._progress.breaks

    @property
    def finish_reason(self) -> str:
        """Such as MAX_TOKENS; empty before the end."""
        last = self._progress.last
        return usage_pb2.FinishReason.Name(last.finish_reason)[len("FINISH_REASON_"):] if last else ""

    @property
    def usage(self) -> Optional[usage_pb2.Usage]:
        """None before the end. After a break that of the call that ended the answer."""
        return self._progress.last.usage if self._progress.last else None

    @property
    def timings(self) -> Optional[usage_pb2.Timings]:
        """As `usage`."""
        return self._progress.last.timings if self._progress.last else None
