"""The process behind `podrun generate`: reads a request as JSON, and writes the text while it grows, then a report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..worker.query import Say, answer_in_parts

if TYPE_CHECKING:
    from ..queries import GenerateQuery


def _answer(request: GenerateQuery, say: Say) -> str:
    from ..models.generation import Sampling
    from ..queries import GenerateAnswer
    from .division import first_devices
    from .source import load
    from .text import Wish, write

    tokenizer = Path(request["tokenizer"]) if request["tokenizer"] else None
    source, about = load(Path(request["folder"]), request["step"], tokenizer, first_devices(request["devices"]))
    wish = Wish(request["tokens"], Sampling(**request["sampling"]), request["seed"], tuple(request["stops"]))
    done = write(source, request["prompts"], wish, lambda number, text: say(json.dumps([number, text])))
    return json.dumps(asdict(GenerateAnswer(about, done.read, done.written, done.seconds, done.timed)))


if __name__ == "__main__":
    answer_in_parts(_answer)
