"""Signing in by an OpenID provider: the rules of a file, what a claim says, the provider itself."""
