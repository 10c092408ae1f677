"""pulumi and the Kubernetes binaries for rehearsals. Standard library only: it runs beside `pip install`."""
