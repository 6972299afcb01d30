"""Bytes <-> library types. Arrow, safetensors and JSON only; never pickle.

Importing this package registers the materializers with ZenML.
"""

from materializers._place import failures as failures
from materializers.corpus import CorpusMaterializer
from materializers.model import ModelBundleMaterializer
from materializers.report import ReportMaterializer
from materializers.spans import SpanShardMaterializer

__all__ = [
    "CorpusMaterializer",
    "ModelBundleMaterializer",
    "ReportMaterializer",
    "SpanShardMaterializer",
]
