"""The page for trying the endpoint in a browser."""
