"""Does a switch follow docs/protocol.md? A reference model, golden and random packet exchanges, and whom they test."""
