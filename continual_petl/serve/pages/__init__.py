"""The page on which a visitor tries the endpoint."""
