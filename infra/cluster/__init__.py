"""The manifests of `infra/k8s`: rendered, checked, completed with secrets."""
