"""Sign-in by an OpenID provider: rules file, evaluation of claims, and the provider's protocol."""
