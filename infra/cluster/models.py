"""Kubernetes models that are safe to decode in several threads.

msgspec builds what it knows of a type when it first decodes it. Two threads that meet in this end the process with
SIGSEGV: msgspec 0.22.0 under lightkube 1.0.1, seen in 5 of 10 runs of the race in test_kubernetes_models.py.
"""

from __future__ import annotations

import threading

from lightkube.core.decoders import decode_list, decode_status, decode_watch_event
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Node, Pod, Secret

MODELS = (ConfigMap, Deployment, Event, Job, Node, Pod, Secret, TokenReview)
"""Every resource of lightkube that infra uses."""
_lock = threading.Lock()
_ready = False


def prepare_models() -> None:
    """Decode a list of each model once; to be called before a client is shared by threads."""
    global _ready
    with _lock:
        if _ready:
            return
        for model in MODELS:
            decode_list(b'{"items": []}', model)
        decode_status(b"{}")
        decode_watch_event(b'{"type": "", "object": {}}')
        _ready = True
