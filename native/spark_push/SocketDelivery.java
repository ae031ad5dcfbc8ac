package io.hopsml;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Proxy;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Base64;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/** Delivery to the server of a stage on another machine, over TLS with the stage's pinned certificate. */
final class SocketDelivery implements Delivery {
  private static final int CONNECT_MS = 15_000;
  private static final int ANSWER_MS = 120_000;
  private static final int PIECE = 256 << 10;

  private final Socket socket;
  private final DataOutputStream out;
  private final byte[] piece = new byte[PIECE];

  SocketDelivery(Stage stage, String file) throws IOException {
    Socket plain = new Socket(Proxy.NO_PROXY); // stages are hosts of the cluster, whatever socksProxyHost is
    try {
      plain.connect(new InetSocketAddress(stage.host, stage.port), CONNECT_MS);
      plain.setSoTimeout(ANSWER_MS);
      plain.setKeepAlive(true);
      socket = context(stage).getSocketFactory().createSocket(plain, stage.host, stage.port, true);
      ((SSLSocket) socket).startHandshake();
      out = new DataOutputStream(socket.getOutputStream());
      out.writeUTF(stage.token);
      out.writeUTF(file);
    } catch (IOException | RuntimeException error) {
      plain.close();
      throw error;
    }
  }

  private static SSLContext context(Stage stage) throws IOException {
    try {
      byte[] certificate = Base64.getDecoder().decode(stage.certificate);
      KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
      trusted.load(null, null);
      trusted.setCertificateEntry(
          "stage", CertificateFactory.getInstance("X.509").generateCertificate(new ByteArrayInputStream(certificate)));
      TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      factory.init(trusted);
      SSLContext context = SSLContext.getInstance("TLSv1.3");
      context.init(null, factory.getTrustManagers(), null);
      return context;
    } catch (GeneralSecurityException error) {
      throw new IOException("no TLS with the stage's certificate: " + error.getMessage(), error);
    }
  }

  @Override
  public int write(ByteBuffer bytes) throws IOException {
    int all = bytes.remaining();
    while (bytes.hasRemaining()) {
      int size = Math.min(PIECE, bytes.remaining());
      bytes.get(piece, 0, size);
      out.writeInt(size);
      out.write(piece, 0, size);
    }
    return all;
  }

  @Override
  public void finish() throws IOException {
    out.writeInt(0);
    out.flush();
    String problem = new DataInputStream(socket.getInputStream()).readUTF();
    if (!problem.isEmpty()) {
      throw new IOException(problem);
    }
  }

  @Override
  public void close() throws IOException {
    socket.close();
  }
}
