"""Scenarios on one Kerberized cluster with two NameNodes and two ResourceManagers, where everything is encrypted."""
