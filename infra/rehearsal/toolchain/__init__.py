"""Where pulumi and the Kubernetes binaries come from. Standard library only: it runs beside `pip install`."""
