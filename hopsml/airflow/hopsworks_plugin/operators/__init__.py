"""The predecessor's operators."""
