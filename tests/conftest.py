from hub_server import hub  # noqa: F401
