"""The version, where an uninstalled checkout finds it too."""

VERSION = "0.1.0"
