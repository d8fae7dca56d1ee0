"""Sources in a bucket: documents have its URLs, and what was changed there is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.prepared_files import PreparedFolder
from podrun.runtime.storage.bucket_client import Bucket

from ...buckets import BUCKET, bucket_server
from .conftest import run_prepare


def test_objects_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_server("s3", tmp_path / "log") as env:
        for name, value in {**env, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/corpus"
        bucket = Bucket(url)
        for name, content in (("a.jsonl", b'{"text": "x"}\n'), ("below/b.txt", b"y"), ("below/c.py", b"z")):
            bucket.put(name, content)
        report = run_prepare(tmp_path / "tokens", url, f"{url}/**/*.py")
        prepared = PreparedFolder(tmp_path / "tokens")
        documents = [prepared.document(number) for number in range(report.documents)]
        assert [(document.source, prepared.text(document.ids)) for document in documents] == [
            (f"{url}/a.jsonl", "x"),
            (f"{url}/below/b.txt", "y"),
            (f"{url}/below/c.py", "z"),
        ]
        assert run_prepare(tmp_path / "tokens", url, f"{url}/**/*.py").was_complete
        bucket.put("below/b.txt", b"Y")
        with pytest.raises(UserError, match=r"corpus/below/b.txt was changed"):
            run_prepare(tmp_path / "tokens", url, f"{url}/**/*.py")
        with pytest.raises(UserError, match="no object, folder or match for"):
            run_prepare(tmp_path / "other", f"{url}/none")
