"""REST and server-sent events, on the gateway's port."""
