"""What earlier versions wrote into a cluster is read by this version, and what this one writes by the first release."""
