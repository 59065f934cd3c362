"""The conformance suite tests whether a switch follows docs/protocol.md, by golden and random packet exchanges."""
