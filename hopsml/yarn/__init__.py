"""YARN client: state and end of applications, and the logs of their drivers.

Example:
    yarn = ResourceManager.from_environment()
    yarn.find_by_tag("my-tag")
    yarn.application("application_1_0001").state
    yarn.kill("application_1_0001")
    logs.read(yarn.application("application_1_0001"), "stdout", offset=0)
"""

from hopsml.yarn.resource_manager import OVER, ResourceManager, YarnApplication, YarnNode, rm_web_addresses

__all__ = ["OVER", "ResourceManager", "YarnApplication", "YarnNode", "rm_web_addresses"]
