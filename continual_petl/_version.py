"""The version; also available in a checkout that is not installed."""

VERSION = "0.1.0"
