"""Looking after a store while it is used: what may go, what is wrong, copies of it. All of it is synchronous."""
