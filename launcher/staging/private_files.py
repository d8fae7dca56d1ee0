"""Recognize files that contain keys or passwords, by name and by content. PURE."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"(?:^|/)(?:"
    r"\.envrc|\.env(?:\.(?!example$|sample$|template$|dist$)[^/]*)?|(?!example\.|sample\.|template\.)[^/]+\.env"
    r"|id_(?:rsa|dsa|ecdsa|ed25519|ecdsa_sk|ed25519_sk|xmss)|[^/]+\.(?:pem|key|ppk|p12|pfx|jks|keystore|kdbx)"
    r"|[._]netrc|\.git-credentials|\.pypirc|\.npmrc|\.yarnrc\.yml|\.pgpass|\.my\.cnf|\.htpasswd|\.dockercfg|\.s3cfg|\.boto"
    r"|application_default_credentials\.json|client_secret[^/]*\.json|kaggle\.json|kubeconfig|\.vault-token"
    r"|\.(?:ssh|aws|azure|gnupg|kube|oci|docker|kaggle)/.+|(?:\.config/)?(?:gcloud|gh)/(?:[^/]*cred[^/]*|hosts\.yml)"
    r"|\.(?:cache/)?huggingface/(?:token|stored_tokens)"
    r")$",
    re.IGNORECASE,
)
_KEY = re.compile(rb"\s*-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-")
_CREDENTIALS = re.compile(rb'"(?:private_key|client_secret|refresh_token)"\s*:')  # Google's service accounts and logins
_LARGEST = 1 << 16  # maximum size of a credentials file, in bytes


def is_private_name(name: str) -> bool:
    """Return True if a file's name says that it contains keys or passwords. `name` is relative to the project's root."""
    return _NAMES.search(name) is not None


def is_private_content(content: bytes) -> bool:
    """Return True for a private key or Google credentials, whatever the file's name."""
    if _KEY.match(content):
        return True
    return len(content) <= _LARGEST and content.lstrip()[:1] == b"{" and _CREDENTIALS.search(content) is not None
