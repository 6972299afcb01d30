"""Kubeflow Pipelines as a place to run: a flavor of ZenML's Kubeflow orchestrator.

ZenML's own drops all of a pod but its image, command and plain variables. Ours writes
down everything that Kubeflow can say of a pod; what it cannot is in docs/OPERATIONS.md.
"""
