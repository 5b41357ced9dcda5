"""A router's life as a process: it listens, it drains when it is asked to end, it is gone.

Owns:   the listening socket, the connections to nodes, the tasks that look after nodes.
Knows nothing of: routes, requests.
"""

import asyncio

import structlog

from kvdist.router.completions import Completions
from kvdist.router.exchange import Cluster
from kvdist.router.http import Api
from kvdist.router.metrics import Metrics
from kvdist.router.nodes import Nodes
from kvdist.router.probe import expire, watch
from kvdist.router.registry import Registry
from kvdist.router.releases import Releases
from kvdist.router.settings import RouterSettings
from kvdist.router.upstream import Upstream, new_session
from kvdist.web.listening import face, listen, signals

_log = structlog.get_logger(__name__)


async def serve(settings: RouterSettings) -> None:
    """Until it has drained. Raises: ConfigError."""
    nodes = Nodes()
    registry = Registry(nodes, asyncio.get_running_loop().time())
    async with new_session() as session:
        upstream = Upstream(session)
        metrics = Metrics(nodes)
        releases = Releases(upstream, metrics)
        api = Api(Cluster(nodes, upstream, releases, metrics, settings), registry)
        runner = face(api.app)
        await runner.setup()
        try:
            await listen(runner, settings.host, settings.port)
            host, port = runner.addresses[0][:2]
            where = f"[{host}]" if ":" in host else host
            _log.info("listening", url=f"http://{where}:{port}")
            async with asyncio.TaskGroup() as tasks:
                looking = [tasks.create_task(expire(registry))]
                looking += [tasks.create_task(watch(n, nodes, upstream)) for n in settings.nodes]
                await _until_drained(api.completions, settings.drain_s)
                for task in looking:
                    task.cancel()
        finally:
            await runner.cleanup()
            await releases.close()
    _log.info("drained")


async def _until_drained(completions: Completions, drain_s: float) -> None:
    is_asked = asyncio.Event()

    def drain() -> None:
        completions.is_draining = True
        is_asked.set()

    try:
        async with asyncio.timeout(None) as deadline:
            with signals(drain, deadline, drain_s):
                await is_asked.wait()
                await completions.drained()
    except TimeoutError:
        _log.warning("requests were cut off", drain_s=drain_s)
        completions.cut_off()
        await completions.drained()
