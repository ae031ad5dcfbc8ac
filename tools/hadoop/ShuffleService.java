package hopsml.tools;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.api.ApplicationInitializationContext;
import org.apache.hadoop.yarn.server.api.ApplicationTerminationContext;
import org.apache.hadoop.yarn.server.api.AuxiliaryService;
import org.apache.spark.network.TransportContext;
import org.apache.spark.network.server.TransportServer;
import org.apache.spark.network.shuffle.ExternalBlockHandler;
import org.apache.spark.network.shuffle.RemoteBlockPushResolver;
import org.apache.spark.network.util.MapConfigProvider;
import org.apache.spark.network.util.TransportConf;

/**
 * External shuffle service in a NodeManager, which also merges pushed blocks; for test clusters without authentication.
 *
 * <p>Handler and merging are the classes that pyspark contains. The class with which Spark itself runs them in YARN is in
 * a jar that pyspark lacks; this one adds neither its authentication nor its recovery after a restart of the NodeManager.
 */
public final class ShuffleService extends AuxiliaryService {
  private ExternalBlockHandler handler;
  private TransportContext context;
  private TransportServer server;

  public ShuffleService() {
    super("spark_shuffle");
  }

  @Override
  protected void serviceInit(Configuration conf) throws Exception {
    TransportConf transport = new TransportConf("shuffle", new MapConfigProvider(Map.of()));
    handler = new ExternalBlockHandler(transport, null, new RemoteBlockPushResolver(transport, null));
    context = new TransportContext(transport, handler, true);
    server = context.createServer(
        conf.get("yarn.nodemanager.hostname"), conf.getInt("spark.shuffle.service.port", 0), List.of());
    super.serviceInit(conf);
  }

  @Override
  protected void serviceStop() throws Exception {
    if (server != null) {
      server.close();
      context.close();
      handler.close();
    }
    super.serviceStop();
  }

  @Override
  public void initializeApplication(ApplicationInitializationContext application) {}

  @Override
  public void stopApplication(ApplicationTerminationContext application) {
    handler.applicationRemoved(application.getApplicationId().toString(), true);
  }

  @Override
  public ByteBuffer getMetaData() {
    return ByteBuffer.allocate(0);
  }
}
