"""`warren serve`: the gateway, its workers and the service manager around it."""
