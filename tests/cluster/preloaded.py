"""What a forked pod has imported before it is one: libraries, and ours below steps."""

import importlib
import pkgutil

import great_expectations  # noqa: F401
import kubernetes.client  # noqa: F401
import mlflow  # noqa: F401
import zenml.client
import zenml.zen_stores.rest_zen_store  # noqa: F401

import dptune.workflow

for _module in pkgutil.iter_modules(dptune.workflow.__path__):
    importlib.import_module(f"dptune.workflow.{_module.name}")
