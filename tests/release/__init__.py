"""What a release consists of besides the code: the bill of materials, checksums, and the check for advisories."""
