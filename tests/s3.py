"""A real S3 over HTTP, in memory: moto's server, which tells whose keys it saw."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import boto3
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

REGION = "eu-central-1"
_CREDENTIAL = re.compile(r"Credential=([^/]+)/")


@dataclass(frozen=True, kw_only=True)
class S3:
    """A running server.

    Args:
        url: its endpoint.
        keys: access keys by which requests were signed; "" where one was not.
    """

    url: str
    keys: set[str] = field(default_factory=set)

    def client(self, key: str = "operator"):
        """Connect with a key of anybody's."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key="for-tests",
        )

    def files(self, bucket: str) -> dict[str, int]:
        """Names of all objects of a bucket, and their sizes."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {o["Key"]: o["Size"] for p in pages for o in p.get("Contents", [])}


class _Silent(MotoRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def running_s3(*buckets: str) -> Iterator[S3]:
    """Serve until it is not needed any more; begins with empty buckets."""
    app, keys = DomainDispatcherApplication(create_backend_app), set()

    def watched(environment, start_response):
        said = _CREDENTIAL.search(environment.get("HTTP_AUTHORIZATION", ""))
        keys.add(said[1] if said else "")
        return app(environment, start_response)

    server = make_server(
        "127.0.0.1", 0, watched, threaded=True, request_handler=_Silent
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    made = S3(url=f"http://127.0.0.1:{server.server_port}", keys=keys)
    try:
        for bucket in buckets:
            place = {"LocationConstraint": REGION}
            made.client().create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
        keys.clear()
        yield made
    finally:
        server.shutdown()
        thread.join()
