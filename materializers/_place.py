"""Where the files of an artifact are."""


def file_of(uri: str, name: str) -> str:
    """Return the place of one file; the two slashes of `s3://` must stay two.

    Args:
        uri: of the artifact, as ZenML gives it.
        name: of the file.
    """
    return f"{uri.rstrip('/')}/{name}"
