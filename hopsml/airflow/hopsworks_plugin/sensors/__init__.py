"""The predecessor's sensors."""
