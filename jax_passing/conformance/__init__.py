"""The conformance suite tests whether a switch follows docs/internals/protocol.md, by packet exchanges."""
