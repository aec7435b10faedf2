"""Signed calls, as services make them: written here anew, by the documentation of the schemes."""

import base64
import hashlib
import hmac
import time


def standard(secret: str, delivery_id: str, body: bytes, *, late: float = 0.0) -> dict[str, str]:
    """Return the headers of a call that Standard Webhooks signs, some seconds ago."""
    timestamp = str(int(time.time() - late))
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    key = base64.b64decode(secret.split("_", 1)[1])
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": delivery_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{signature}"}


def github(secret: str, delivery_id: str, body: bytes, event: str = "push") -> dict[str, str]:
    """Return the headers of a call of GitHub."""
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "x-github-delivery": delivery_id,
        "x-github-event": event,
        "x-hub-signature-256": f"sha256={signature}",
        "content-type": "application/json",
    }
