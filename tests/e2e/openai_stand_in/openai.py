"""What the Python of docs/how-to/use-openai-clients.md uses of OpenAI's client, which Debian has not: requests as that one sends them, and answers
as objects. It shows that the page's program is right, not that OpenAI's client is."""
import json
import types
import urllib.request


class OpenAI:
    def __init__(self, *, base_url, api_key):
        self._base, self._key = base_url, api_key
        self.models = types.SimpleNamespace(list=lambda: self._ask("/models"))
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self._create))

    def _create(self, *, model, messages, temperature, max_tokens, extra_body):
        asked = {"model": model, "messages": messages, "temperature": temperature, "max_tokens": max_tokens, **extra_body}
        return self._ask("/chat/completions", json.dumps(asked).encode())

    def _ask(self, path, body=None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self._base + path, body, headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer, object_hook=lambda fields: types.SimpleNamespace(**fields))
