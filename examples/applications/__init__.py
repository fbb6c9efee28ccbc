"""fdbqueue in applications: one small file for each framework, and files for systemd and Kubernetes.

`docs/operations/applications.md` explains them.
"""
